"""An object store on one machine: the emulator of Google Cloud Storage from PyPI, and the tokens of a service account.

python gcs_emulator.py ADDRESS PORT TOKEN_PORT FOLDER BUCKET        objects become files below FOLDER
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Tokens(BaseHTTPRequestHandler):
    """Gives every service account a token; the emulator asks for none."""

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"access_token": "token", "token_type": "Bearer", "expires_in": 3600}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    address, port, token_port, folder, bucket = sys.argv[1:]
    os.environ |= {"STORAGE_BASE": folder, "STORAGE_DIR": "objects"}  # read when the emulator is imported
    from gcp_storage_emulator.server import create_server

    tokens = ThreadingHTTPServer((address, int(token_port)), Tokens)
    threading.Thread(target=tokens.serve_forever, daemon=True).start()
    create_server(address, int(port), in_memory=False, default_bucket=bucket).run()


if __name__ == "__main__":
    main()
