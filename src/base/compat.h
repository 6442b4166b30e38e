/*
 * base/compat.h
 *	  Everything that differs between PostgreSQL 15-18 and hiredis 0.14-1.x. No other file tests for a version.
 *
 * Include it after postgres.h. The hiredis part is defined only if <hiredis/hiredis.h> was included before. A wrapper
 * has the name and the arguments of the newest interface, or the prefix fence_ where there is none to imitate. Add only
 * what is used.
 */
#ifndef FENCE_COMPAT_H
#define FENCE_COMPAT_H

#include "common/jsonapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/wait_event.h"

/* Index of this process in arrays with one entry per process. */
#if PG_VERSION_NUM >= 170000
#define fence_process_number() ((int) MyProcNumber)
#else
#define fence_process_number() (MyProc->pgprocno)
#endif

/* Custom wait events have names from PostgreSQL 17 on. Before, all of them are "Extension". */
#if PG_VERSION_NUM < 170000
#define WaitEventExtensionNew(name) ((void) (name), (uint32) PG_WAIT_EXTENSION)
#endif

/* pg_noreturn must stand before the declaration. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/* pg_get_loaded_modules() shows name and version from PostgreSQL 18 on. */
#if PG_VERSION_NUM >= 180000
#define FENCE_MODULE_MAGIC(module, release) PG_MODULE_MAGIC_EXT(.name = module, .version = release)
#else
#define FENCE_MODULE_MAGIC(module, release) PG_MODULE_MAGIC
#endif

/* The subtransaction of the current transaction that first gave the relation new storage, by TRUNCATE or a rewrite. */
#if PG_VERSION_NUM >= 160000
#define fence_new_storage_in(rel) ((rel)->rd_firstRelfilelocatorSubid)
#else
#define fence_new_storage_in(rel) ((rel)->rd_firstRelfilenodeSubid)
#endif

/* ALTER TABLE ... ALTER COLUMN ... SET EXPRESSION came with PostgreSQL 17. The caller includes nodes/parsenodes.h. */
#if PG_VERSION_NUM >= 170000
#define fence_sets_expression(cmd) ((cmd)->subtype == AT_SetExpression)
#else
#define fence_sets_expression(cmd) (false)
#endif

/* Checks privileges on an object. We use it for functions and schemas only. */
#if PG_VERSION_NUM < 160000
#include "catalog/pg_namespace.h"
#define object_aclcheck(class_id, object, role, mode) \
	((class_id) == NamespaceRelationId ? pg_namespace_aclcheck(object, role, mode) : pg_proc_aclcheck(object, role, mode))
#endif

/* Checks whether the role may do what the object's owner may. We use it for relations only. */
#if PG_VERSION_NUM < 160000
#define object_ownercheck(class_id, object, role) pg_class_ownercheck(object, role)
#endif

/*
 * The columns that an UPDATE sets: one list for each result relation in the executor state. From PostgreSQL 18 on the
 * state may have fewer relations than the plan.
 */
#if PG_VERSION_NUM >= 180000
#define fence_update_columns(mt) ((mt)->mt_updateColnosLists)
#else
#define fence_update_columns(mt) (castNode(ModifyTable, (mt)->ps.plan)->updateColnosLists)
#endif

/* Returns whether this transaction holds this lock, or a stronger one, on a table of this database. */
static inline bool
fence_holds_lock(Oid relid, LOCKMODE mode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(&tag, mode, true);
#else
	for (; mode <= MaxLockMode; mode++)
		if (LockHeldByMe(&tag, mode))
			return true;
	return false;
#endif
}

/* Allocates what a check hook passes to its assign hook. */
#if PG_VERSION_NUM < 160000
#define guc_malloc(elevel, size) malloc(size)
#endif

/* Creates a wait event set that lives as long as the process. */
#if PG_VERSION_NUM >= 170000
#define fence_create_wait_event_set(n) CreateWaitEventSet(NULL, n)
#else
#define fence_create_wait_event_set(n) CreateWaitEventSet(TopMemoryContext, n)
#endif

/* Returns whether the bytes are well-formed JSON in the database's encoding. Raises nothing. */
static inline bool
fence_is_json(char *bytes, size_t len)
{
	JsonLexContext *lex;

	if (!pg_verifymbstr(bytes, len, true))
		return false;
#if PG_VERSION_NUM >= 170000
	lex = makeJsonLexContextCstringLen(NULL, bytes, len, GetDatabaseEncoding(), false);
#else
	lex = makeJsonLexContextCstringLen(bytes, len, GetDatabaseEncoding(), false);
#endif
	return pg_parse_json(lex, &nullSemAction) == JSON_SUCCESS;
}

#ifdef HIREDIS_MAJOR

/* The argument type of redisReplyObjectFunctions.createArray. */
#if HIREDIS_MAJOR >= 1
typedef size_t redis_array_size;
#else
typedef int redis_array_size;
#endif

#endif							/* HIREDIS_MAJOR */

#endif
