"""custom.metrics.k8s.io and external.metrics.k8s.io: each job's figures for HorizontalPodAutoscalers, behind an API service."""
