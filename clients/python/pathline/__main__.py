"""``python -m pathline``: the command line."""

import sys

from pathline.cli import main

sys.exit(main())
