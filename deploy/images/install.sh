#!/bin/sh
# `install.sh libraries LOCK` installs the libraries of a lock file into /opt/tandem;
# `install.sh tandem` adds Tandem and removes what only an installation needs.
set -eu
case "$1" in
libraries)
    python3 -m venv /opt/tandem
    /opt/tandem/bin/pip install --require-hashes --only-binary=:all: -r "$2"
    find /opt/tandem -type d -name tests -path "*/numpy/*" -prune -exec rm -rf {} +
    ;;
tandem)
    /opt/tandem/bin/pip install --no-deps /wheels/*.whl
    /opt/tandem/bin/pip check
    /opt/tandem/bin/pip uninstall --yes setuptools pip 2>/dev/null || /opt/tandem/bin/pip uninstall --yes pip
    # All of it anew, by hash and not by time: a release gives its files the time of the commit, and
    # byte code that names another time would be ignored.
    /opt/tandem/bin/python -m compileall -q -f --invalidation-mode unchecked-hash /opt/tandem/lib
    ;;
*)
    echo "usage: install.sh libraries LOCK | install.sh tandem" >&2
    exit 2
    ;;
esac
