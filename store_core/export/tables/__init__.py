"""What a store holds, table by table, as Arrow record batches: only the columns and rows that are asked for."""
