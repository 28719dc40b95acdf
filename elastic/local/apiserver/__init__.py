"""Serve the laptop cluster's Kubernetes API over HTTPS, from one process with one embedded database.

tests/conformance is the standard: recordings of a real API server, replayed here. The server is frozen. It gets no more kinds or verbs,
except those that Kubeflow Trainer, JobSet, Kueue, kubectl and the SDKs need.

The way of a request: `http.Edge.handle` finds the user (`auth`) and the resource (`paths`, `resources.Registry`), and asks `rbac` whether
the user may. A write goes to `writes`, which decodes the body, applies the patch and checks it against the schema. `objects` then adds
the rules of all kinds (metadata, generations, finalizers, grace) and asks the admission chain (`admission`, `reviews` for webhooks). The
`Strategy` of a kind has the rules of that kind alone. `store.Store` compares the version, commits to SQLite, and only then tells
watchers.

The way of a watch: `watch.Watcher` subscribes to the store, and each change is encoded once for all watchers that want the same form
(`watch.Shared`). A watcher that reads too slowly loses its connection, and lists again, as at a real server.

Everything runs in one thread of one event loop, so no object needs a lock. Nothing here runs pods: the scheduler, the controllers and the
node agent are clients (elastic.local.agents).
"""
