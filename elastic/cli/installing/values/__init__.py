"""The values of an installation: one table for the Helm chart, for `elastic install --values` and for docs/deploy.md."""
