#!/usr/bin/env bash
# debian-packages.sh [python] [node] [web] [java] [nats] [prometheus] [systemd] [valgrind]: installs what is missing of these, when run as
# root on a Debian; anywhere else it prints what is missing. Does nothing, and asks no network, when nothing is missing.
set -eu

here="$(dirname "$0")"
packages=()

for part in "${@:-python}"; do
    case "$part" in
        python)
            "$here/find-python.sh" >/dev/null 2>&1 || packages+=(python3 python3-venv)
            ;;
        node)
            # Some builds of Node bring npm along, Debian's does not.
            command -v node >/dev/null || packages+=(nodejs)
            command -v npm >/dev/null || packages+=(npm)
            ;;
        web)
            # Debian keeps nginx where only root's path looks.
            command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || packages+=(nginx)
            command -v chromium >/dev/null || command -v chromium-headless-shell >/dev/null || packages+=(chromium)
            ;;
        java)
            # Spark needs 17 or newer; which one Debian calls its default depends on the release.
            [ -n "${JAVA_HOME:-}" ] || command -v java >/dev/null || packages+=(default-jre-headless)
            ;;
        nats)
            # A virtual environment may have a newer one in its own folder, which is another part of the tests.
            [ -x /usr/sbin/nats-server ] || [ -x /usr/bin/nats-server ] || [ -x /usr/local/bin/nats-server ] ||
                packages+=(nats-server)
            ;;
        prometheus)
            command -v prometheus >/dev/null || packages+=(prometheus)
            ;;
        systemd)
            command -v systemd-analyze >/dev/null || packages+=(systemd)
            ;;
        valgrind)
            command -v valgrind >/dev/null || packages+=(valgrind)
            ;;
        *)
            echo "debian-packages.sh: unknown part '$part' (python, node, web, java, nats, prometheus, systemd, valgrind)" >&2
            exit 2
            ;;
    esac
done

if [ "${#packages[@]}" -eq 0 ]; then
    exit 0
fi

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing here: ${packages[*]} (names of Debian packages; as root on a Debian they would be installed)" >&2
    exit 0
fi

echo "installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
# Installing nginx, nats-server or prometheus would start it too, on every address; the tests start their own, on a loopback address.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
# Whoever cannot do without them says so next, in words of their own.
if ! { apt-get update -qq && apt-get install -qq --yes --no-install-recommends "${packages[@]}" >/dev/null; }; then
    echo "could not install ${packages[*]}" >&2
fi
