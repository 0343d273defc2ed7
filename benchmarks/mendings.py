"""Undo what was mended after attacks on real runs, one mending at a time: the tests named for each must fail.

As `benchmarks.mutants`, whose faults are in protocol code; these are about availability, keys and names, and what is
kept and opened. The number before each is the attack's. Those of 9 and 13 take five minutes to
fail: they wait for a gateway that does not close, and for a cause that is not found.
"""

from benchmarks.mutants import Fault, main

_GATEWAY = "tests/io/exchange/test_flight_gateway.py"
_LIMITS = "tests/io/exchange/test_gateway_limits.py"
_RENEWED = "tests/io/exchange/test_renewed_certificates.py"
MENDINGS = (
    Fault(
        "1: impossible results are taken",
        "pipelines/session/result_opening.py",
        '    if not possible:\n        raise RefusedError(\n            f"the opened',
        '    if False:\n        raise RefusedError(\n            f"the opened',
        ("tests/pipelines/session/test_result_opening.py",),
    ),
    Fault(
        "2: a store from a backup is used",
        "io/ledgers/claim_ledger.py",
        "        if lost:\n",
        "        if False:\n",
        ("tests/pipelines/session/test_triple_claim.py",),
    ),
    Fault(
        "3: seeds of ended runs stay",
        "io/storage/triple_store.py",
        "            files.delete(seed)\n        for arrays",
        "            pass\n        for arrays",
        ("tests/io/storage/test_triple_store.py",),
    ),
    Fault(
        "3: shares of ended runs stay",
        "io/ledgers/forgetting.py",
        "        run.drop_all_but(kind, None)\n",
        "        pass\n",
        ("tests/io/ledgers/test_forgetting.py",),
    ),
    Fault(
        "4: idle connections stay",
        "io/exchange/connection_guard.py",
        "            for name, connection in _to_close(strangers, now):\n",
        "            for name, connection in ():\n",
        ("tests/io/exchange/test_connection_guard.py",),
    ),
    Fault(
        "4: the soft limit of descriptors stays",
        "io/exchange/connections.py",
        "    raise_descriptor_limit()\n    inbox",
        "    inbox",
        ("tests/io/exchange/test_connections.py",),
    ),
    Fault(
        "5: a folder is deleted under arriving messages",
        "io/exchange/inbox.py",
        "        with suppress(FileNotFoundError):  # its iteration was dropped while it arrived: nobody needs it\n",
        "        with suppress(ZeroDivisionError):\n",
        ("tests/io/exchange/test_inbox.py",),
    ),
    Fault(
        "6: compressed buffers of a message are decompressed",
        "schemas/arrays.py",
        "        _refuse_compression(source)\n",
        "        pass\n",
        ("tests/schemas/test_arrays.py", _GATEWAY),
    ),
    Fault(
        "7: a part of any size is taken",
        "io/exchange/flight_gateway.py",
        "            if len(batch.column(0)[0].as_buffer()) > PART_SIZE:\n",
        "            if False:\n",
        (_GATEWAY,),
    ),
    Fault(
        "7: a part without end is received",
        "io/exchange/connection_guard.py",
        "                if self._arriving[known.remote] > ARRIVING:\n",
        "                if False:\n",
        ("tests/io/exchange/test_connection_guard.py",),
    ),
    Fault(
        "8: a peer opens any number of streams",
        "io/exchange/flight_gateway.py",
        "            if self._open_streams[sender] >= STREAMS_OF_A_PEER:\n",
        "            if False:\n",
        (_LIMITS,),
    ),
    Fault(
        "8: any number of strange messages is stored",
        "io/exchange/inbox.py",
        "        if key.address.run in self._begun:\n            return True\n        with",
        "        if True:\n            return True\n        with",
        (_GATEWAY,),
    ),
    Fault(
        "10: pipes and devices in an outbox are read",
        "io/exchange/file_exchange.py",
        "    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):\n",
        "    if False:\n",
        ("tests/io/exchange/test_file_exchange.py",),
    ),
    Fault(
        "10: links in an outbox are followed",
        "io/exchange/file_exchange.py",
        "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK",
        "os.O_RDONLY | os.O_NONBLOCK",
        ("tests/io/exchange/test_file_exchange.py",),
    ),
    Fault(
        "11: terms nested deeply are compared",
        "schemas/handshake_terms.py",
        "            _check_depth(raw, _DEEPEST)\n",
        "            pass\n",
        ("tests/schemas/test_handshake_terms.py", "tests/io/exchange/test_handshake.py"),
    ),
    Fault(
        "11: escape sequences reach the terminal",
        "schemas/errors.py",
        "        self.sentence = printable(",
        "        self.sentence = str(",
        ("tests/schemas/test_errors.py",),
    ),
    Fault(
        "12: calls that a gateway does not have",
        "io/exchange/flight_gateway.py",
        "        if info.method not in self._KNOWN:\n",
        "        if False:\n",
        (_GATEWAY,),
    ),
    Fault(
        "13: the private key is copied to a temporary folder",
        "io/exchange/tls_diagnosis.py",
        "    reader, writer = os.pipe()\n",
        '    open(__import__("tempfile").gettempdir() + "/key", "wb").write(content)\n    reader, writer = os.pipe()\n',
        ("tests/io/exchange/test_tls_diagnosis.py",),
    ),
    Fault(
        "14: a new pin counts after a restart",
        "io/exchange/connections.py",
        "            if state != self._state and self._renew():\n",
        "            if False:\n",
        (_RENEWED,),
    ),
    Fault(
        "14: messages go to a peer that is not pinned any more",
        "io/exchange/flight_exchange.py",
        "        if self._pins is None:\n            return endpoint, self._identity\n",
        "        if True:\n            return endpoint, self._identity\n",
        (_RENEWED,),
    ),
    Fault(
        "14: a party waits for a peer that is not pinned any more",
        "io/exchange/flight_exchange.py",
        "        if self._pins is not None and peer in self._peers:\n",
        "        if False:\n",
        (_RENEWED,),
    ),
    Fault(
        "14: files are for the certificate that was pinned at the start",
        "io/exchange/connections.py",
        "        if made is None or made[:2] != (identity.key, certificate):\n",
        "        if made is None:\n",
        (_RENEWED,),
    ),
    Fault(
        "14: a run is bound to a digest under the parties' keys",
        "schemas/handshake_terms.py",
        "if name not in (IDS, POLICY)}",
        "if name not in (POLICY,)}",
        ("tests/io/exchange/test_handshake.py",),
    ),
    Fault(
        "15: the dealer sends messages of runs",
        "io/exchange/flight_gateway.py",
        "        if self._sender == self._gateway.dealer and",
        "        if False and",
        (_LIMITS,),
    ),
    Fault(
        "16: names of openings collide",
        "pipelines/reveal.py",
        'f"{run[:44]}-{hashlib.sha256(run.encode()).hexdigest()[:16]}"',
        "run[:60]",
        ("tests/pipelines/test_reveal.py",),
    ),
    Fault(
        "17: refusals are forgotten when the gateway serves",
        "io/exchange/connections.py",
        "    for run in reruns:\n        inbox.forget_refusal(run)\n    return",
        "    return",
        ("tests/io/exchange/test_connections.py",),
    ),
    Fault(
        "18: a dealer's worker makes a seed of its own",
        "transforms/offline/dealer.py",
        "        raise StorageError(f\"the dealer's {file} is not there: workers must see the dealer's storage, or set shared\")\n",  # noqa: E501
        "        make_dealer_seed(config)\n",
        ("tests/transforms/offline/test_dealer.py",),
    ),
    Fault(
        "19: ids that are formulas are passed on",
        "pipelines/reporting/results_table.py",
        "    escaped = pc.if_else(formulas, pc.replace_substring_regex(",
        "    escaped = pc.if_else(False, pc.replace_substring_regex(",
        ("tests/pipelines/reporting/test_results_table.py",),
    ),
    Fault(
        "19: a secret that others may read is used",
        "io/files/secret_files.py",
        "    if mode & 0o077:\n",
        "    if False:\n",
        ("tests/io/exchange/test_connections.py",),
    ),
    Fault(
        "22: transcripts are not compared",
        "transforms/auditing/statements.py",
        "        if different is not None:\n",
        "        if False:\n",
        ("tests/transforms/auditing/test_statements.py",),
    ),
    Fault(
        "24: openings beyond the limit",
        "io/ledgers/opening_ledger.py",
        "        if new and limit is not None and known + len(new) > limit:\n",
        "        if False:\n",
        ("tests/io/ledgers/test_opening_ledger.py",),
    ),
    Fault(
        "9: a stream outlives its gateway",
        "io/exchange/flight_gateway.py",
        "        if self._closing is None:\n            return False\n",
        "        if True:\n            return False\n",
        (_LIMITS,),
    ),
)


if __name__ == "__main__":
    main(MENDINGS, __doc__)
