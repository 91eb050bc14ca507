"""Small recipes for tests that train a network."""

from training.config import CONFIGS, Recipe, load_recipe


def small(name: str = "moons", **changes: object) -> Recipe:
    """Return a shipped recipe with two epochs of a tiny network."""
    recipe = load_recipe(CONFIGS / f"{name}.toml", {"epochs": 2})
    network = recipe.network.model_copy(update={"hidden": 16, "blocks": 1})
    return recipe.model_copy(update={"network": network, **changes})
