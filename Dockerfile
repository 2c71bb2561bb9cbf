# The services, with what they need at run time and nothing else.
FROM python:3.12-slim

WORKDIR /tailrace
COPY requirements/runtime.txt requirements/data.txt requirements/dev.txt requirements/

# The flights' data comes as source, of which only the files are wanted: built with the setuptools of the lock, which go again.
RUN export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    && pip install --require-hashes --no-deps -r requirements/runtime.txt \
    && sed -n '/^setuptools==/,/[^\\]$/p' requirements/dev.txt > /tmp/setuptools.txt \
    && pip install --require-hashes --no-deps -r /tmp/setuptools.txt \
    && pip install --require-hashes --no-deps --no-build-isolation -r requirements/data.txt \
    && pip uninstall --yes setuptools \
    && rm /tmp/setuptools.txt

COPY framework framework
COPY schemas schemas
COPY services services

# Pure Python: on the path, it needs no build.
ENV PYTHONPATH=/tailrace/framework:/tailrace PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# Log and state are in data/, what the demo draws in out/; volumes mounted there belong to the user of the services.
RUN useradd --create-home tailrace && install -d -o tailrace -g tailrace data out
USER tailrace

CMD ["python", "-m", "services.demo", "examples"]
