"""The process `elastic-rendezvous`: clocks and connections around the membership engine. It decides nothing about membership itself."""
