# The base of rmqctl for hosts with containers. The store is mounted, read-only where nothing shall be changed:
#
#   docker build -t rmqctl .
#   docker run --rm -v /data/rocketmq/store:/store:ro rmqctl info
#   docker run --rm -v /data/rocketmq/store:/store --user "$(stat -c %u:%g /data/rocketmq/store)" rmqctl recover --apply
#
# Writing commands are to run as the owner of the store, hence --user.

FROM rust:1-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends make python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY Makefile constraints.txt pyproject.toml README.md LICENSE pyspark_rmqctl.py ./
COPY packaging packaging
COPY store_core store_core
COPY rmqctl rmqctl
RUN make wheel

FROM python:3.13-slim-bookworm
COPY --from=build /source/dist/*.whl /source/constraints.txt /tmp/
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt /tmp/*.whl && rm /tmp/*.whl /tmp/constraints.txt \
 && useradd --system --uid 10001 --create-home rmqctl
USER rmqctl
ENV RMQCTL_STORE=/store PYTHONDONTWRITEBYTECODE=1
WORKDIR /home/rmqctl
ENTRYPOINT ["rmqctl"]
CMD ["--help"]
