# The server of a deployment (docs/deployment.md). Build it in the root of the repository:
#   docker build -f docker/server.Dockerfile -t graphfed-server .
# No kit is in the image: mount the server's at /kit.
FROM python:3.11-slim-bookworm

# Where pip looks beside its own index: for torch built for the CPU alone, without the libraries of CUDA.
ARG PIP_EXTRA_INDEX_URL

WORKDIR /opt/graphfed
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY graphfed graphfed
# The build tools are installed first, so that they too come from constraints.txt.
RUN pip install --no-cache-dir -c constraints.txt setuptools \
    && pip install --no-cache-dir -c constraints.txt --no-build-isolation '.[deploy]'
COPY docker/healthy.py /opt/healthy.py

# A user whose number is in no list has neither name nor home; some libraries ask for both.
RUN useradd --uid 1000 graphfed
ENV USER=graphfed HOME=/tmp OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
USER 1000
WORKDIR /tmp

# The one port that the sites connect to, where the project file names no other.
EXPOSE 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "/opt/healthy.py", "/kit"]
ENTRYPOINT ["graphfed"]
CMD ["site", "start", "/kit"]
