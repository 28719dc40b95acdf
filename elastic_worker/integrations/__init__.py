"""Make the training loops of other frameworks elastic. Each module imports the framework that it is named after.

agreement            decides with all ranks when to save and when to stop
huggingface          a callback for transformers' Trainer
huggingface_trainer  transformers' Trainer in worlds that change in process; its arguments and its progress have modules of their own
lightning            a callback for Lightning's Trainer
"""
