"""``python -m semiar.cli``."""

import sys

from semiar.cli.main import main

sys.exit(main())
