"""The process `elastic-rendezvous`: clocks and connections around the membership machine. It decides nothing about membership itself."""
