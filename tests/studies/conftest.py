from tests.training.conftest import mnist_dir, options, recipe  # noqa: F401
