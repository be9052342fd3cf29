"""Run ``python -m rmqctl``."""

import sys

from rmqctl.app import main

sys.exit(main())
