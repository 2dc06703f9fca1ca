"""Runs the command ``pgspate`` for ``python -m pgspate``."""

from __future__ import annotations

import sys

from ._cli import main

sys.exit(main())
