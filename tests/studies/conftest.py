from tests.training.conftest import mnist_dir, one_thread, options, recipe  # noqa: F401
