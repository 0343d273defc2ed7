"""A private set intersection by openmined.psi: `python psi_program.py IDS` prints a JSON object.

It runs in an environment of its own and imports nothing of this project. Both sides are in one process and in turn, as
openmined's own benchmarks have them: a server, with a chance of 2^-40 of a false match, and a client that learns which
of its ids are common. Half of the ids are common. Result: seconds, megabytes of all messages, peak_gib.
"""

import json
import resource
import sys
import time

import private_set_intersection.python as psi

FALSE_MATCHES = 2.0**-40


def main() -> None:
    count = int(sys.argv[1])
    start = time.perf_counter()
    client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
    theirs = [f"customer-{i + count // 2}" for i in range(count)]
    setup = server.CreateSetupMessage(FALSE_MATCHES, count, theirs, psi.DataStructure.RAW)
    request = client.CreateRequest([f"customer-{i}" for i in range(count)])
    response = server.ProcessRequest(request)
    found = client.GetIntersection(setup, response)
    seconds = time.perf_counter() - start
    if len(found) != count - count // 2:
        raise SystemExit(f"openmined.psi found {len(found):,} common ids of {count - count // 2:,}")
    sent = sum(message.ByteSize() for message in (setup, request, response))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "megabytes": sent / 1e6, "peak_gib": peak}))


if __name__ == "__main__":
    main()
