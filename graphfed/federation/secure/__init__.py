"""Operations by cryptographic protocols, written as programs over places.

The protocols themselves are in `graphfed.crypto`.

protection                       how a transfer is protected: an argument that a setting provides
aggregation                      sums and means over clients, at the server
shared_sum                       sums over clients, at every client
maximum                          maxima over clients, at the server
encrypted_sum                    sums of rows, returned to clients
pairs                            pairs of clients that may send each other messages
pair_transfers, notifications    rows and notifications between the two clients of pairs
pair_protocols, compare          two-party protocols and comparisons between the two clients of pairs
"""
