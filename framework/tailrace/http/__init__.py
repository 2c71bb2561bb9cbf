"""What is answered over HTTP: where a process listens, who may ask, and the server. Needs the extra ``http``."""
