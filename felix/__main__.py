"""`python -m felix` is `calico-felix`."""

import sys

from felix.daemon import main

if __name__ == "__main__":
    sys.exit(main())
