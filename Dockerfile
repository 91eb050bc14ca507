# One image for all programs: `training` fills the model repository, `service` serves it, `fleet` makes files of samples.
# docs/deploy.md and docs/scale.md say how.
FROM python:3.11.16-slim-bookworm AS base
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1

FROM base AS build
# Where torch may come from besides the package index, and the lock with the hashes of its wheels (deploy/locks). The
# default has CPU builds. Empty, with the lock torch-cuda: the package index alone, whose torch for Linux is a CUDA build
# with gigabytes of libraries.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG TORCH_LOCK=torch-cpu
# Wheels only: nothing is compiled, so this stage needs no compiler either.
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PIP_ONLY_BINARY=:all:
WORKDIR /build
# The environment gets no pip of its own; the base image's pip installs into it.
RUN python -m venv --without-pip /opt/venv
# Nothing is installed whose SHA-256 is not in a lock, and nothing that no lock names.
# torch in a layer of its own, because it is the largest and changes least. Only torch may come from the extra index.
COPY deploy/locks/${TORCH_LOCK}.txt ./torch.txt
RUN pip --python /opt/venv/bin/python install --no-deps --require-hashes \
      ${TORCH_INDEX_URL:+--retries 2 --extra-index-url "$TORCH_INDEX_URL"} -r torch.txt
# The dependencies without the code, so that a change of code installs nothing again. The check finds what a lock lacks.
COPY deploy/locks/base.txt ./
RUN pip --python /opt/venv/bin/python install --no-deps --require-hashes -r base.txt \
 && pip --python /opt/venv/bin/python check
COPY solvers /opt/pathline/solvers
COPY models /opt/pathline/models
COPY training /opt/pathline/training
COPY service /opt/pathline/service
COPY fleet /opt/pathline/fleet
# Bytecode is made here, because the running containers cannot write any.
RUN python -m compileall -q --invalidation-mode unchecked-hash /opt/pathline
# So is the machine code of the solvers' loops and of fused networks, beside them, from where each start copies it to
# NUMBA_CACHE_DIR. It is for this machine's kind of processor: on another one a start compiles for half a minute.
RUN PYTHONPATH=/opt/pathline python -c \
      'import torch; from models import fused; from solvers import warm_up; \
       warm_up(torch.float32); warm_up(torch.float64); fused.warm_up()'

FROM base
RUN pip uninstall --yes --root-user-action ignore pip setuptools wheel
# The folders belong to the user, and Docker gives a new volume the owner of the folder that it is mounted on.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/pathline --shell /usr/sbin/nologin pathline \
 && install -d -o pathline -g pathline /var/lib/pathline/checkpoints /var/lib/pathline/runs
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/pathline /opt/pathline
# In a container, 127.0.0.1 would be reached by nobody. The last three are what libraries keep for themselves: the home
# folder is read-only.
ENV PYTHONPATH=/opt/pathline \
    PYTHONSAFEPATH=1 \
    PATHLINE_HOST=0.0.0.0 \
    PATHLINE_PORT=8000 \
    SCIKIT_LEARN_DATA=/var/lib/pathline/runs/scikit-learn \
    MPLCONFIGDIR=/tmp/matplotlib \
    NUMBA_CACHE_DIR=/tmp/numba
# The programs' default folders, checkpoints/ and runs/, are relative to this one.
WORKDIR /var/lib/pathline
USER 10001:10001
EXPOSE 8000
# http.client, because urllib would ask a proxy from the environment for 127.0.0.1.
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; connection = http.client.HTTPConnection('127.0.0.1', int(os.environ['PATHLINE_PORT']), timeout=4); connection.request('GET', '/readyz'); sys.exit(connection.getresponse().status != 200)"]
ENTRYPOINT ["python", "-m"]
CMD ["service"]
