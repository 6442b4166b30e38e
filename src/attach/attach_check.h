/*
 * attach/attach_check.h
 *	  The arguments of fence.attach, and the checks of these arguments and of the table.
 *
 * Each function here returns if all is well, and otherwise raises an error with a reason and mostly a hint. The caller
 * holds ShareRowExclusiveLock or a stronger lock on the table. The checks change neither the table nor a catalog.
 */
#ifndef FENCE_ATTACH_CHECK_H
#define FENCE_ATTACH_CHECK_H

#include "utils/rel.h"

#include "domain/catalog.h"

/* The arguments of fence.attach, and what the checks derive from them */
typedef struct AttachRequest
{
	DomainRow	row;			/* the row of fence.domain; the steps of fence.attach fill it */
	List	   *others;			/* DomainRows of the attachments that the table has already */
	List	   *members;		/* DomainRows of the domain's other tables; NIL: the domain is new */
	bool		key_given;		/* key => was not NULL */
	bool		add_version;
	AttrNumber *key_attnums;
	AttrNumber	version_attnum; /* InvalidAttrNumber: there is none */
	Oid			key_index;		/* the unique index on the key */
} AttachRequest;

/*
 * Checks the arguments without looking at the table. Raises 22023 for an invalid value, 0A000 for a combination that is
 * not supported.
 */
extern void attach_check_request(const AttachRequest *request);

/*
 * Raises 42501 unless the caller is the table's owner, a member of the owner's role or a superuser; 42P01 if the table
 * is gone. Needs no lock.
 */
extern void attach_check_owner(Oid relid);

/*
 * Checks that the table is of a kind that can be fenced: a permanent heap table of a user, or a partitioned table of
 * these. Raises 42809 or 0A000. Locks the partitions (ShareRowExclusiveLock).
 */
extern void attach_check_table(Relation rel);

/*
 * Finds the key columns and their unique index, and fills row.key_columns, key_attnums and key_index. Checks the
 * columns, their types and the tag. Raises 42703, 42P16, 42701, 22023 or 0A000.
 */
extern void attach_check_key(AttachRequest *request, Relation rel);

/*
 * Finds and checks the version column, and fills version_attnum. Returns false if the column does not exist and the
 * caller wants it added; then add it and call again. Raises 42703, 42804, 42P16 or 22004.
 */
extern bool attach_check_version(AttachRequest *request, Relation rel);

/*
 * Checks that the table can join the domain of request->members: the same options, and a key of the same types. Raises
 * 22023 or 42804.
 */
extern void attach_check_join(const AttachRequest *request, Relation rel);

/*
 * Checks that the columns exist that values are to contain. Raises 42703; also 0A000 for a generated column with
 * only_columns.
 */
extern void attach_check_columns(const AttachRequest *request, Relation rel);

#endif
