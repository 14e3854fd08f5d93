# Transom in a container.
#
#   docker build -t transom .
#   docker run --rm --read-only --cap-drop ALL --security-opt no-new-privileges -p 127.0.0.1:8787:8787 \
#     -v "$PWD/config.yaml:/etc/transom/config.yaml:ro" transom
#
# Inside a container the configuration must say `listen: 0.0.0.0:8787`; on 127.0.0.1 nobody outside could reach it. To
# serve on another port, publish another one (-p 9000:8787): the health check asks on 8787. The vocabularies of the
# tokenizers come with the installed packages, so the container needs no way out but to its upstream.
# It writes nothing but what `store: sqlite:////var/lib/transom/transom.db` asks for; a volume there is its user's.

FROM python:3.12-slim AS build

WORKDIR /src
RUN python -m venv --without-pip /opt/transom
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY proxy proxy
RUN python -m pip --python /opt/transom/bin/python --no-cache-dir --disable-pip-version-check install \
      --constraint requirements.lock '.[otel,redis]'

FROM python:3.12-slim

# No installer is left in what runs.
RUN python -m pip uninstall --yes --root-user-action=ignore pip \
 && install -d -m 0700 -o 10001 -g 10001 /var/lib/transom
COPY --from=build /opt/transom /opt/transom
ENV PATH=/opt/transom/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

# A number, not a name, so that an orchestrator can see that it is not root.
USER 10001:10001
WORKDIR /tmp
EXPOSE 8787
STOPSIGNAL SIGTERM

# A bare connection, so that proxy settings in the environment do not send it elsewhere.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 \
  CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8787, timeout=4); c.request('GET', '/-/healthz'); raise SystemExit(c.getresponse().status != 200)"]

ENTRYPOINT ["transom"]
CMD ["serve", "--config", "/etc/transom/config.yaml"]
