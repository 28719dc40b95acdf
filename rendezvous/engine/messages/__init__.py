"""The messages that the engine hears and gives, as values. Codecs are at its edges, such as elastic.membership.wire."""
