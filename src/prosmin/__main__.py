"""`python -m prosmin` is the command `prosmin`."""

import sys

from prosmin.cli import main

sys.exit(main())
