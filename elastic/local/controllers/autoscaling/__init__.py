"""HorizontalPodAutoscalers: the loop of autoscaling/v2 as kube-controller-manager runs it."""
