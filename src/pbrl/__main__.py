"""``python -m pbrl`` is ``pbrl``."""

from pbrl.cli.main import main

raise SystemExit(main())
