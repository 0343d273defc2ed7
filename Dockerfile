# Images of one party: party (commands), gateway (a service), worker (Beam's harness with veilmeans, for Flink and Dataflow).
FROM python:3.11-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --no-install-recommends --yes gcc=4:12.* libc6-dev=2.36-* \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
RUN python -m venv /opt/veilmeans && /opt/veilmeans/bin/pip install --no-cache-dir .

FROM python:3.11-slim-bookworm AS party
RUN useradd --create-home --uid 10001 veilmeans \
    && mkdir --parents /party/storage/inbox \
    && chown --recursive veilmeans:veilmeans /party \
    && chmod --recursive 0700 /party
COPY --from=build /opt/veilmeans /opt/veilmeans
ENV PATH=/opt/veilmeans/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MALLOC_ARENA_MAX=2 \
    ARROW_DEFAULT_MEMORY_POOL=system
USER 10001
WORKDIR /party
ENTRYPOINT ["veilmeans"]
CMD ["--help"]

FROM party AS gateway
EXPOSE 7101
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 7101), 2).close()"]
CMD ["gateway", "--config", "/party/config.yaml", "--set", "listen=0.0.0.0:7101"]

FROM party AS worker
COPY --from=apache/beam_python3.11_sdk:2.77.0 /opt/apache/beam /opt/apache/beam
ENV RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
ENTRYPOINT ["/opt/apache/beam/boot"]
CMD []
