# The command in a container; files go to the folder it is started in:
# docker build -t harness . && docker run --rm -u "$(id -u)" -v "$PWD:/runs" harness evaluate --preset glance
FROM python:3.11-slim
COPY . /src
RUN pip install --no-cache-dir /src && rm -r /src
ENV HOME=/tmp
WORKDIR /runs
ENTRYPOINT ["harness"]
