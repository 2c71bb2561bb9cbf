# docker build --target base -t tailrace .   Tailrace with what it needs on Kafka, for snapshots and rebuilds, and over HTTP: the base of apps
# docker build -t tailrace-services .        the same, with the services of this repository
# The digest is that of the image for all platforms, by what other public Dockerfiles say: it was not compared with the registry.
ARG BASE=docker.io/library/python:3.12.12-slim-bookworm@sha256:593bd06efe90efa80dc4eee3948be7c0fde4134606dd40d8dd8dbcade98e669c

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_DEPS=1
WORKDIR /build
COPY requirements/runtime.txt requirements/dev.txt ./
# Two environments: that of the image, and that of the tools which build what comes as source. Both are as the locks say.
RUN python3 -m venv --without-pip /venv && python3 -m venv --without-pip /tools \
    && for tool in setuptools hatchling packaging pathspec pluggy trove-classifiers; \
        do sed -n "/^$tool==/,/[^\\\\]\$/p" dev.txt; done > tools.txt \
    && python3 -m pip --python /tools/bin/python install --require-hashes -r tools.txt \
    && python3 -m pip --python /venv/bin/python install --require-hashes -r runtime.txt \
    && rm -rf /venv/lib/python3*/site-packages/pyarrow/tests /venv/lib/python3*/site-packages/pyarrow/include \
        /venv/lib/python3*/site-packages/pyarrow/*flight*
COPY pyproject.toml README.md LICENSE ./
COPY framework framework
RUN python3 -m pip --python /tools/bin/python wheel --no-build-isolation -w tailrace . \
    && python3 -m pip --python /venv/bin/python install tailrace/*

FROM ${BASE} AS base
# State, and the log on disk: a volume belongs on data. What the demo draws is in out.
RUN install -d -m 0750 -o 10001 -g 10001 /tailrace/data /tailrace/out
COPY --from=build /venv /venv
WORKDIR /tailrace
ENV PATH=/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/tailrace HOME=/tmp \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TAILRACE_HTTP=127.0.0.1:8080
# A number, so that an engine can tell that it is not root.
USER 10001:10001
VOLUME /tailrace/data
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "-m", "tailrace.http.health"]
ENTRYPOINT ["tailrace"]
CMD ["--help"]

FROM build AS services
COPY requirements/data.txt ./
RUN python3 -m pip --python /tools/bin/python wheel --require-hashes --no-build-isolation -w wheels -r data.txt \
    && python3 -m pip --python /venv/bin/python install --target /services wheels/*
COPY schemas /services/schemas
COPY services /services/services
# The root of a container is read-only: what is not compiled here is compiled at each start.
RUN /venv/bin/python -m compileall -q /services

FROM base
COPY --from=services /services /tailrace
