"""nginx in front of servers of the tests."""

import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

from tests.integration.operate.tools import tool

WHOLE = """
daemon off;
user root;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events { worker_connections 1024; }
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include site.conf;
}
"""


@contextmanager
def nginx(folder: Path, host: str, site: str) -> Iterator[tuple[int, ssl.SSLContext]]:
    """nginx with the configuration of a site; its port 443 and its certificate of /etc/nginx are replaced by those given."""
    program, authority, tls = tool("nginx", "make web"), trustme.CA(), ssl.create_default_context()
    authority.issue_cert(host, "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "shop.pem")
    authority.configure_trust(tls)
    (folder / "nginx.conf").write_text(WHOLE)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # taken over, as from the nginx that an upgrade replaces
        port, inherited = listening.getsockname()[1], listening.fileno()
        site = site.replace("listen 443", f"listen 127.0.0.1:{port}").replace("shop.key", "shop.pem")
        (folder / "site.conf").write_text(site.replace("/etc/nginx", str(folder)))
        command, environment = [program, "-p", str(folder), "-c", "nginx.conf"], os.environ | {"NGINX": f"{inherited};"}
        with subprocess.Popen(command, env=environment, pass_fds=[inherited]) as process:
            try:
                yield port, tls
            finally:
                process.terminate()
