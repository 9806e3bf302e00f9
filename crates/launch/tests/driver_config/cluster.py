"""A cluster in a file, for the tests of the driver-config scripts.

`cluster.py kubectl ARGUMENT...` stands in for kubectl: it reads and changes world.json beside the file that FAKE_CLUSTER names, and
writes down every call. `cluster.py serve` is an API server of the same world, for the real kubectl: what the scripts ask must mean the
same to both.
"""

import json
import os
import re
import sys

KINDS = {
    "nvidiadrivers": ("nvidia.com/v1alpha1", "NVIDIADriver", False),
    "clusterpolicies": ("nvidia.com/v1", "ClusterPolicy", False),
    "configmaps": ("v1", "ConfigMap", True),
    "pods": ("v1", "Pod", True),
    "nodes": ("v1", "Node", False),
    "daemonsets": ("apps/v1", "DaemonSet", True),
}


def plural(name):
    name = name.split(".")[0].lower()
    return {"configmap": "configmaps", "pod": "pods", "node": "nodes", "nvidiadriver": "nvidiadrivers", "clusterpolicy": "clusterpolicies"}.get(name, name)


# ---- jsonpath, as far as the scripts use it


def steps(path):
    out, at = [], 0
    while at < len(path):
        if path[at] == ".":
            match = re.compile(r"\.((?:\\.|[^.\[\\])+)").match(path, at)
            out.append(re.sub(r"\\(.)", r"\1", match.group(1)))
        else:
            match = re.compile(r"\[(\*|\d+)\]").match(path, at)
            out.append("*" if match.group(1) == "*" else int(match.group(1)))
        at = match.end()
    return out


def find(value, path):
    found = [value]
    for step in steps(path):
        after = []
        for one in found:
            if step == "*":
                after += one if isinstance(one, list) else []
            elif isinstance(step, int):
                after += one[step : step + 1] if isinstance(one, list) else []
            elif isinstance(one, dict) and step in one:
                after.append(one[step])
        found = after
    return found


def show(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"), sort_keys=True)
    return "" if value is None else str(value)


def jsonpath(template, value):
    tokens = re.findall(r"\{[^{}]*\}|[^{}]+", template)

    def run(at, value):
        out = ""
        while at < len(tokens):
            token = tokens[at]
            at += 1
            if not token.startswith("{"):
                out += token
                continue
            body = token[1:-1].strip()
            if body == "end":
                return out, at
            if body.startswith("range "):
                end = at
                for item in find(value, body[6:].strip()):
                    text, end = run(at, item)
                    out += text
                if end == at:  # nothing there: skip to the end
                    depth = 1
                    while depth:
                        inner = tokens[end][1:-1].strip() if tokens[end].startswith("{") else ""
                        depth += 1 if inner.startswith("range ") else -1 if inner == "end" else 0
                        end += 1
                at = end
            elif body.startswith('"'):
                out += json.loads(body)
            else:
                out += " ".join(show(one) for one in find(value, body))
        return out, at

    return run(0, value)[0]


# ---- the world


def field(item, selector):
    for part in filter(None, selector.split(",")):
        key, _, wanted = part.partition("=")
        if " ".join(show(one) for one in find(item, "." + key)) != wanted:
            return False
    return True


def labelled(item, selector):
    labels = item["metadata"].get("labels", {})
    return all(labels.get(part.partition("=")[0]) == part.partition("=")[2] for part in filter(None, selector.split(",")))


class World:
    def __init__(self):
        self.file = os.path.join(os.environ["FAKE_CLUSTER"], "world.json")
        with open(self.file) as file:
            self.all = json.load(file)

    def save(self):
        with open(self.file, "w") as file:
            json.dump(self.all, file, indent=1)

    def items(self, kind, namespace=None, labels="", fields=""):
        out = []
        for item in self.all.get(kind, []):
            if namespace and KINDS[kind][2] and item["metadata"].get("namespace") != namespace:
                continue
            if labelled(item, labels) and field(item, fields):
                out.append(item)
        return out

    def step(self):
        """A pod that is coming up goes on by one state each time somebody looks."""
        for node, states in self.all.get("coming", {}).items():
            if states:
                new = states.pop(0)
                self.all["pods"] = [pod for pod in self.all["pods"] if pod["metadata"]["name"] != new["metadata"]["name"]]
                self.all["pods"].append(new)


def merge(value, patch):
    if not isinstance(patch, dict):
        return patch
    value = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            value.pop(key, None)
        else:
            value[key] = merge(value.get(key), change)
    return value


def refuse(text, code=1):
    sys.stderr.write(text + "\n")
    sys.exit(code)


def apply(world, path):
    text = open(path).read()
    name = re.search(r"^  name: (\S+)$", text, re.M).group(1)
    namespace = re.search(r"^  namespace: (\S+)$", text, re.M).group(1)
    data = {}
    body = text[text.index("\ndata:\n") + 7 :]
    for match in re.finditer(r"^  ([^\s:]+): \|\n((?:    .*\n|\n)*)", body, re.M):
        data[match.group(1)] = re.sub(r"^    ", "", match.group(2), flags=re.M)
    maps = world.all.setdefault("configmaps", [])
    for item in maps:
        if item["metadata"]["name"] == name:
            item["data"] = merge(item.get("data"), data)
            return
    maps.append({"metadata": {"name": name, "namespace": namespace}, "data": data})


def kubectl(arguments):
    world = World()
    with open(os.path.join(os.environ["FAKE_CLUSTER"], "calls"), "a") as file:
        file.write(json.dumps(arguments) + "\n")
    command, words, options, rest = None, [], {}, []
    queue = list(arguments)
    while queue:
        word = queue.pop(0)
        if word == "--":
            rest = queue
            break
        if word in ("--context", "-n", "-o", "-l", "-c", "--field-selector", "--patch-file", "-f"):
            options[word] = queue.pop(0)
        elif word.startswith("-"):
            key, _, value = word.partition("=")
            options[key] = value
        else:
            words.append(word)
    if options.get("--context") != world.all["context"]:
        refuse("error: context %r does not exist" % options.get("--context"))
    command = words.pop(0)
    namespace = options.get("-n")
    if command == "config":
        return jsonpath(options["-o"][9:], {"clusters": [{"cluster": {"server": "https://cluster.test:6443"}}]})
    if command == "get":
        kind = plural(words[0])
        if kind in world.all.get("forbidden", []):
            refuse("Error from server (Forbidden): %s is forbidden" % kind)
        if kind == "pods" and "--all-namespaces" not in options:
            world.step()
            world.save()
        if len(words) > 1:
            found = [item for item in world.items(kind, namespace) if item["metadata"]["name"] == words[1]]
            if not found:
                if "--ignore-not-found" in options:
                    return ""
                refuse('Error from server (NotFound): %s "%s" not found' % (kind, words[1]))
            return jsonpath(options["-o"][9:], found[0])
        items = world.items(kind, namespace, options.get("-l", ""), options.get("--field-selector", ""))
        return jsonpath(options["-o"][9:], {"items": items})
    if command == "exec":
        files = world.all.get("files", {}).get(words[0])
        if files is None or rest[:1] != ["cat"] or rest[1] not in files:
            refuse("error: unable to upgrade connection: container not found")
        return files[rest[1]]
    if command == "logs":
        return world.all.get("logs", {}).get(words[0], "")
    if command == "apply":
        apply(world, options["-f"])
        world.save()
        return "configmap configured\n"
    if command == "patch":
        kind = plural(words[0])
        patch = json.load(open(options["--patch-file"]))
        for index, item in enumerate(world.all[kind]):
            if item["metadata"]["name"] == words[1]:
                if not world.all.get("sets_back"):
                    world.all[kind][index] = merge(item, patch)
                world.save()
                return "patched\n"
        refuse("Error from server (NotFound)")
    if command == "delete":
        gone = [pod for pod in world.all["pods"] if pod["metadata"]["name"] == words[1]]
        if not gone:
            refuse('Error from server (NotFound): pods "%s" not found' % words[1])
        world.all["pods"].remove(gone[0])
        node = gone[0]["spec"]["nodeName"]
        world.all.setdefault("coming", {})[node] = world.all.get("after", {}).get(node, [])
        world.save()
        return 'pod "%s" deleted\n' % words[1]
    refuse("the stand-in does not know: %s" % arguments)


# ---- an API server for the real kubectl


def serve():
    # Not above: every call of the stand-in would read these modules, too.
    import http.server
    import urllib.parse

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, value, code=200):
            body = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def missing(self):
            self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"}, 404)

        def do_GET(self):
            url = urllib.parse.urlparse(self.path)
            query = {key: values[0] for key, values in urllib.parse.parse_qs(url.query).items()}
            parts = url.path.strip("/").split("/")
            groups = sorted({version for version, _, _ in KINDS.values() if "/" in version})
            if parts == ["version"]:
                return self.answer({"major": "1", "minor": "32", "gitVersion": "v1.32.4"})
            if parts == ["api"]:
                return self.answer({"kind": "APIVersions", "versions": ["v1"]})
            if parts == ["apis"]:
                names = {}
                for version in groups:
                    names.setdefault(version.split("/")[0], []).append({"groupVersion": version, "version": version.split("/")[1]})
                groups = [{"name": name, "versions": all, "preferredVersion": all[0]} for name, all in names.items()]
                return self.answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
            version = "/".join(parts[1:3]) if parts[0] == "apis" else parts[1]
            parts = parts[3:] if parts[0] == "apis" else parts[2:]
            if not parts:
                resources = [
                    {"name": name, "singularName": kind.lower(), "namespaced": spaced, "kind": kind, "verbs": ["get", "list"]}
                    for name, (of, kind, spaced) in KINDS.items()
                    if of == version
                ]
                return self.answer({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
            namespace = None
            if parts[0] == "namespaces":
                namespace, parts = parts[1], parts[2:]
            if not parts:
                return self.missing()
            of, kind, _ = KINDS[parts[0]]
            items = World().items(parts[0], namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
            items = [{"apiVersion": of, "kind": kind, **item} for item in items]
            if len(parts) > 1:
                found = [item for item in items if item["metadata"]["name"] == parts[1]]
                if found:
                    return self.answer(found[0])
                return self.missing()
            return self.answer({"apiVersion": of, "kind": kind + "List", "metadata": {}, "items": items})

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        sys.stdout.write(kubectl(sys.argv[2:]) or "")
