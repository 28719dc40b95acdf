"""Record what each event says. The module rounds decides what follows."""
