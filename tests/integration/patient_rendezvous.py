"""Run a rendezvous server that would wait ten minutes for the end of its connections when it is told to end."""

from elastic_training.rendezvous import main

main.STOP_S = 600.0

if __name__ == "__main__":
    main.main()
