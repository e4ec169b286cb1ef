"""Examples in docstrings run with the tests; those of packages that are not installed do not."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["equipoise/interop/torch/*"]
