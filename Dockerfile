# One image for the API and the workers. `intel` adds what an Intel GPU needs:
#   docker build --target intel -t batchgen:intel .

FROM python:3.11-slim-trixie AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/batchgen
# The pinned dependencies first: they change seldom, so the layer is seldom built again.
COPY requirements/base.txt requirements/
RUN pip install --require-hashes -r requirements/base.txt
COPY pyproject.toml README.md ./
COPY batchgen batchgen
COPY workers workers
COPY api api
COPY migrations migrations
RUN pip install --no-deps --no-build-isolation .
# Volumes take over the owner of the directory that they cover.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin batchgen \
    && install -d -o batchgen -g batchgen -m 0750 /data \
    && install -d /models
ENV BATCHGEN_DATA_DIR=/data BATCHGEN_MODEL_ROOTS=/models
WORKDIR /data
USER batchgen

# Intel's OpenCL driver, by which OpenVINO reaches the GPU through /dev/dri.
FROM base AS intel
USER root
RUN apt-get update \
    && apt-get install --yes --no-install-recommends intel-opencl-icd \
    && rm -rf /var/lib/apt/lists/*
USER batchgen

# The last stage is what a build without --target makes.
FROM base AS cpu
