"""Callbacks that make the training loops of other frameworks elastic. Each module imports the framework that it is named after.

agreement    decides with all ranks when to save and when to stop
huggingface  a callback for transformers' Trainer
lightning    a callback for Lightning's Trainer
"""
