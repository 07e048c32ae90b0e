# leakaudit as a user without privileges. The demo:        docker run --rm leakaudit
# Your own trace:  docker run --rm --user "$(id -u)" -v "$PWD:/work" leakaudit attack trace.pt -o out/
FROM python:3.11-slim

# Index of the build of torch that you want, for example the CPU build: docker build --build-arg TORCH_INDEX=URL .
ARG TORCH_INDEX=""
ENV MPLCONFIGDIR=/tmp PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

WORKDIR /source
COPY constraints.txt requirements.lock ./
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt torch torchvision \
    && pip install --require-hashes --no-deps --only-binary :all: -r requirements.lock
COPY . .
RUN pip install --no-deps --no-build-isolation . && rm -rf /source

RUN useradd --create-home --uid 10001 auditor && install -d -o auditor /work
USER auditor
WORKDIR /work
ENTRYPOINT ["leakaudit"]
CMD ["demo"]
