"""The exchange of messages between parties: gateways, files, handshake, TLS.

gRPC writes a line to the standard error for every failed TLS handshake. The side that connects reports the cause in one
sentence (`tls_diagnosis`), so gRPC's log is limited to errors; GRPC_VERBOSITY=INFO in the environment shows it all.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read when gRPC starts, so before any gateway or client is made
