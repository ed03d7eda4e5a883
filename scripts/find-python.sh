#!/usr/bin/env bash
# Prints a Python that can build the virtual environment: >= 3.11, with venv and ensurepip.
# PYTHON=... decides, if set; else an optimised build (see scripts/python_build.py: it does the same work in two thirds of the
# time), python3 before the system's own and the newest of the versions that we test.
set -eu

here="$(dirname "$0")"
seen=""
usable=""
for candidate in ${PYTHON:-python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11}; do
    # A name may be found and still not run: version managers leave such stubs behind.
    if version="$("$candidate" -c 'import platform; print(platform.python_version())' 2>/dev/null)"; then
        if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            seen="$seen $candidate is $version;"
        elif ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            seen="$seen $candidate is $version but lacks venv or ensurepip (Debian: python3-venv);"
        else
            # In an active virtual environment: the Python beneath it, as that environment may be the one to rebuild.
            found="$("$candidate" -c 'import sys; print(getattr(sys, "_base_executable", None) or sys.executable)')"
            usable="${usable:-$found}"
            if "$candidate" "$here/python_build.py"; then
                usable="$found"
                break
            fi
        fi
    fi
done

if [ -n "$usable" ]; then
    echo "$usable"
    exit 0
fi

echo "polybus needs Python 3.11 or newer, with venv. Found:${seen:- none}" >&2
echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2
exit 1
