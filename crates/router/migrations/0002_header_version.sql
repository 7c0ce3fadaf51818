-- Of what the router kept of a GGUF file's header (register/gguf.rs). 0: as before this was counted; the header is read again.
ALTER TABLE models ADD COLUMN header_version bigint NOT NULL DEFAULT 0;
