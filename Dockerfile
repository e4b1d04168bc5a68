# syntax=docker/dockerfile:1
# One file, three images: --target extender | agent | predictor. What a test can do without a
# container engine it does: tests/helm/test_image.py takes the same steps in a folder.
# `make images` builds all three without Docker, on a base made of Debian's packages.
# Releases name the base by digest, or are refused; docs/install.md tells how to find it:
#   --build-arg RELEASE=true --build-arg PYTHON_IMAGE=python:3.13-slim@sha256:...
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
ARG PYTHON_IMAGE
ARG RELEASE=false
RUN case "$RELEASE $PYTHON_IMAGE" in \
    true*@sha256:* | false*) ;; \
    *) echo "a release names its base by digest, not $PYTHON_IMAGE" >&2; exit 1 ;; \
    esac
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY requirements-build.lock ./
RUN python3 -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --only-binary=:all: -r requirements-build.lock

# One wheel with the packages of all components. A C compiler comes from PyPI, for the kernel of
# the policies: the base has none, and this stage alone needs one.
FROM build AS wheel
COPY requirements-compiler.lock ./
RUN /opt/build/bin/pip install --require-hashes --only-binary=:all: -r requirements-compiler.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY tandem tandem
COPY tandem_demo tandem_demo
COPY scheduler_extender scheduler_extender
COPY node_agent node_agent
COPY predictor predictor
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# Each component has only the libraries that it imports. They are a step of their own, so that a
# change of the sources does not install them again.
FROM build AS build-extender
COPY deploy/images/install.sh requirements-extender.lock ./
RUN sh install.sh libraries requirements-extender.lock
COPY --from=wheel /wheels /wheels
RUN sh install.sh tandem

FROM build AS build-agent
COPY deploy/images/install.sh requirements-agent.lock ./
RUN sh install.sh libraries requirements-agent.lock
COPY --from=wheel /wheels /wheels
RUN sh install.sh tandem

FROM build AS build-predictor
COPY deploy/images/install.sh requirements-predictor.lock ./
RUN sh install.sh libraries requirements-predictor.lock
COPY --from=wheel /wheels /wheels
RUN sh install.sh tandem

FROM ${PYTHON_IMAGE} AS base
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="tandem" \
      org.opencontainers.image.description="Training jobs share GPUs where prediction and measurement say it is safe" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/tandem/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /tmp

# Each is started once: a base may lack a library that a wheel expects of every system.
# Kubernetes has probes of its own and reads no HEALTHCHECK; these are for a container run by hand.
FROM base AS predictor
COPY --from=build-predictor /opt/tandem /opt/tandem
RUN python -m predictor --help > /dev/null
HEALTHCHECK CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8090/healthz', timeout=3)"]
ENTRYPOINT ["python", "-m", "predictor"]

# Runs with hostPID and a user of its own: it reads the cgroups of other users' processes to attribute
# GPU memory, which every user may, and can signal none of them.
FROM base AS agent
COPY --from=build-agent /opt/tandem /opt/tandem
RUN python -m node_agent --help > /dev/null
USER 59405:59405
HEALTHCHECK CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9405/healthz', timeout=3)"]
ENTRYPOINT ["python", "-m", "node_agent"]

FROM base AS extender
COPY --from=build-extender /opt/tandem /opt/tandem
RUN python -m scheduler_extender --help > /dev/null
# The extender would decide the same without its kernel in C, but more slowly.
RUN python -c "from tandem.policy.compiled.library import library; assert library()"
HEALTHCHECK CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8880/healthz', timeout=3)"]
ENTRYPOINT ["python", "-m", "scheduler_extender"]
