#!/bin/sh
# Install Tandem and the libraries of one lock file into /opt/tandem: `install.sh LOCK`.
set -eu
python3 -m venv /opt/tandem
/opt/tandem/bin/pip install --require-hashes --only-binary=:all: -r "$1"
/opt/tandem/bin/pip install --no-deps /wheels/*.whl
/opt/tandem/bin/pip check
# Neither runs in a container; the virtual environment brings them.
/opt/tandem/bin/pip uninstall --yes setuptools pip 2>/dev/null || /opt/tandem/bin/pip uninstall --yes pip
find /opt/tandem -type d -name tests -path "*/numpy/*" -prune -exec rm -rf {} +
/opt/tandem/bin/python -m compileall -q /opt/tandem/lib
