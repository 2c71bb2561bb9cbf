# The example services, with what they need at run time and nothing else.
FROM python:3.12-slim

WORKDIR /tailrace
COPY requirements/runtime.txt requirements/runtime.txt
RUN pip install --no-cache-dir --require-hashes --no-deps -r requirements/runtime.txt

COPY framework framework
COPY schemas schemas
COPY services services

# Pure Python: on the path, it needs no build.
ENV PYTHONPATH=/tailrace/framework:/tailrace PYTHONUNBUFFERED=1
RUN useradd --create-home tailrace
USER tailrace

CMD ["python", "-m", "services.demo", "examples"]
