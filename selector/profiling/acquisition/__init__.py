"""Active sampling: acquisition of the measurements that improve selection most."""
