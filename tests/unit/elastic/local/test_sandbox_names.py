"""How names are looked up inside a pod of sandbox netns."""

from elastic.local.sandbox.netns import names_from_files


def test_hosts_are_looked_up_in_the_hosts_file_alone_and_all_else_as_on_the_machine():
    machine = "passwd: files systemd\n  hosts: files mdns4_minimal [NOTFOUND=return] resolve dns\nnetworks: files\n"
    assert names_from_files(machine) == "passwd: files systemd\nnetworks: files\nhosts: files\n"
    assert names_from_files("") == "hosts: files\n"
