# The command on a CPU, without CUDA's libraries; files go to the folder it is started in:
# docker build -t harness . && docker run --rm -u "$(id -u)" -v "$PWD:/work" harness evaluate --preset glance
FROM python:3.11-slim
COPY . /src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu /src && rm -r /src
ENV HOME=/tmp
WORKDIR /work
ENTRYPOINT ["harness"]
