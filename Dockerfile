# One image for all programs: `training` fills the model repository, `service` serves it, `fleet` makes files of samples.
# docs/deploy.md and docs/scale.md explain how to use it.
FROM python:3.11.16-slim-bookworm AS base
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1

FROM base AS build
# An additional package index for torch, and the lock with the hashes of its wheels (deploy/locks). The default index has
# CPU builds. If empty, with the lock torch-cuda, torch comes from the default package index: for Linux, a CUDA build with
# gigabytes of libraries.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG TORCH_LOCK=torch-cpu
# Wheels only: nothing is compiled, so this stage needs no compiler.
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PIP_ONLY_BINARY=:all:
WORKDIR /build
# The environment has no pip; the base image's pip installs into it.
RUN python -m venv --without-pip /opt/venv
# Only packages listed in a lock are installed, and only with the SHA-256 given there.
# torch has its own layer, because it is the largest and changes least. Only torch may come from the extra index.
COPY deploy/locks/${TORCH_LOCK}.txt ./torch.txt
RUN pip --python /opt/venv/bin/python install --no-deps --require-hashes \
      ${TORCH_INDEX_URL:+--retries 2 --extra-index-url "$TORCH_INDEX_URL"} -r torch.txt
# The dependencies come before the code, so that a code change does not reinstall them. `pip check` finds what a lock lacks.
COPY deploy/locks/base.txt ./
RUN pip --python /opt/venv/bin/python install --no-deps --require-hashes -r base.txt \
 && pip --python /opt/venv/bin/python check
COPY solvers /opt/pathline/solvers
COPY models /opt/pathline/models
COPY selection /opt/pathline/selection
COPY engine /opt/pathline/engine
COPY training /opt/pathline/training
COPY service /opt/pathline/service
COPY fleet /opt/pathline/fleet
COPY clients/python/pathline /opt/pathline/pathline
# Bytecode is compiled here, because the running containers cannot write it.
RUN python -m compileall -q --invalidation-mode unchecked-hash /opt/pathline
# So is the machine code of the solvers' loops and of fused networks. It is stored beside their sources, and each start
# copies it to NUMBA_CACHE_DIR. It fits this machine's type of processor: on another type, a start compiles for half a minute.
RUN PYTHONPATH=/opt/pathline python -c \
      'import torch; from models.forms.fused import residual_mlp as fused; from solvers import warm_up; \
       warm_up(torch.float32); warm_up(torch.float64); fused.warm_up()'

FROM base
RUN pip uninstall --yes --root-user-action ignore pip setuptools wheel
# The folders belong to this user, because Docker gives a new volume the owner of the folder on which it is mounted.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/pathline --shell /usr/sbin/nologin pathline \
 && install -d -o pathline -g pathline /var/lib/pathline/checkpoints /var/lib/pathline/runs
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/pathline /opt/pathline
# In a container, 127.0.0.1 could not be reached from outside. The last three are folders in which libraries keep files,
# because the home folder is read-only.
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
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=3 CMD ["python", "-m", "service.healthcheck"]
ENTRYPOINT ["python", "-m"]
CMD ["service"]
