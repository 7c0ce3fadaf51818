//! What outlives the router: registered models in a database.
//!
//! SQLite embedded; the statements keep to what PostgreSQL knows as well.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model_manifest::Manifest;
use node_api::ModelSettings;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use sqlx::{Row as _, SqliteConnection};

static MIGRATIONS: Migrator = sqlx::migrate!();
/// SQLite has one writer at a time; a few readers beside it are enough for a catalog.
const CONNECTIONS_MAX: u32 = 4;
/// For a connection, and for a lock another process holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "database {} cannot be opened; put a copy of it back, or move it away to start with an empty catalog",
        path.display()
    )]
    Open { path: PathBuf, source: sqlx::Error },
    #[error(
        "database {} was written by a newer version of llm-router (migration {version}); run that version, or start with \
         another data folder",
        path.display()
    )]
    Newer { path: PathBuf, version: i64 },
    #[error("database {} cannot be brought to this version", path.display())]
    Migrate { path: PathBuf, source: MigrateError },
    #[error("model {id} is registered already")]
    Duplicate { id: String },
    #[error("model {id} in the database cannot be read")]
    Row { id: String, source: serde_json::Error },
    #[error("the database failed to {operation}")]
    Query { operation: &'static str, source: sqlx::Error },
}

/// A registered model as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredModel {
    pub manifest: Manifest,
    pub settings: ModelSettings,
    /// Spellings of the tokenizer's control tokens.
    pub control_tokens: chat::ControlTokens,
    /// Text files the router needs, by name.
    pub files: BTreeMap<String, String>,
    /// Seconds since 1970.
    pub created: i64,
    /// Of what was kept of a GGUF file's header; of other formats it says nothing.
    pub header_version: i64,
}

#[derive(Debug, Clone)]
pub struct Store {
    pool: SqlitePool,
}

impl Store {
    /// Opens or makes the database and brings it to this version.
    pub async fn open(path: &Path) -> Result<Store, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(BUSY_TIMEOUT);
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(BUSY_TIMEOUT)
            .connect_with(options)
            .await
            .map_err(|source| StoreError::Open { path: path.to_owned(), source })?;
        MIGRATIONS.run(&pool).await.map_err(|source| match source {
            MigrateError::VersionMissing(version) => StoreError::Newer { path: path.to_owned(), version },
            source => StoreError::Migrate { path: path.to_owned(), source },
        })?;
        Ok(Store { pool })
    }

    /// All models, in order of id.
    pub async fn models(&self) -> Result<Vec<StoredModel>, StoreError> {
        let query = |source| StoreError::Query { operation: "list the models", source };
        let rows = sqlx::query(
            "SELECT id, manifest, settings, control_tokens, created_at, header_version FROM models ORDER BY id",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(query)?;
        let files = sqlx::query("SELECT model_id, name, content FROM model_files")
            .fetch_all(&self.pool)
            .await
            .map_err(query)?;
        let mut by_model: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for row in files {
            by_model.entry(row.get("model_id")).or_default().insert(row.get("name"), row.get("content"));
        }
        let read = |row: &sqlx::sqlite::SqliteRow| {
            let id: String = row.get("id");
            let wrong = |source| StoreError::Row { id: id.clone(), source };
            Ok(StoredModel {
                manifest: serde_json::from_str(row.get("manifest")).map_err(wrong)?,
                settings: serde_json::from_str(row.get("settings")).map_err(wrong)?,
                control_tokens: serde_json::from_str(row.get("control_tokens")).map_err(wrong)?,
                files: by_model.remove(&id).unwrap_or_default(),
                created: row.get("created_at"),
                header_version: row.get("header_version"),
            })
        };
        rows.iter().map(read).collect()
    }

    /// Adds a model; one with the same id stays as it is.
    pub async fn insert(&self, model: &StoredModel) -> Result<(), StoreError> {
        let id = &model.manifest.id;
        let query = |source: sqlx::Error| match &source {
            sqlx::Error::Database(e) if e.is_unique_violation() => StoreError::Duplicate { id: id.clone() },
            _ => StoreError::Query { operation: "store a model", source },
        };
        let mut transaction = self.pool.begin().await.map_err(query)?;
        insert_model(&mut transaction, model).await.map_err(query)?;
        insert_files(&mut transaction, model).await.map_err(query)?;
        transaction.commit().await.map_err(query)
    }

    /// Changes everything of a model but its id, its settings and when it came. False: there is none.
    pub async fn replace(&self, model: &StoredModel) -> Result<bool, StoreError> {
        let query = |source| StoreError::Query { operation: "change a model", source };
        let mut transaction = self.pool.begin().await.map_err(query)?;
        let statement = "UPDATE models SET fingerprint = $1, manifest = $2, control_tokens = $3, header_version = $4 \
                         WHERE id = $5";
        let done = sqlx::query(statement)
            .bind(model.manifest.fingerprint())
            .bind(json(&model.manifest))
            .bind(json(&model.control_tokens))
            .bind(model.header_version)
            .bind(&model.manifest.id)
            .execute(&mut *transaction)
            .await
            .map_err(query)?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query("DELETE FROM model_files WHERE model_id = $1")
            .bind(&model.manifest.id)
            .execute(&mut *transaction)
            .await
            .map_err(query)?;
        insert_files(&mut transaction, model).await.map_err(query)?;
        transaction.commit().await.map_err(query)?;
        Ok(true)
    }

    /// False: there is none.
    pub async fn set_settings(&self, id: &str, settings: &ModelSettings) -> Result<bool, StoreError> {
        let done = sqlx::query("UPDATE models SET settings = $1 WHERE id = $2")
            .bind(json(settings))
            .bind(id)
            .execute(&self.pool)
            .await
            .map_err(|source| StoreError::Query { operation: "change a model's settings", source })?;
        Ok(done.rows_affected() > 0)
    }

    /// False: there is none.
    pub async fn delete(&self, id: &str) -> Result<bool, StoreError> {
        let done = sqlx::query("DELETE FROM models WHERE id = $1")
            .bind(id)
            .execute(&self.pool)
            .await
            .map_err(|source| StoreError::Query { operation: "remove a model", source })?;
        Ok(done.rows_affected() > 0)
    }

    /// Ends every connection, so that the files can be taken away.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

async fn insert_model(connection: &mut SqliteConnection, model: &StoredModel) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO models (id, fingerprint, manifest, settings, control_tokens, created_at, header_version) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(&model.manifest.id)
    .bind(model.manifest.fingerprint())
    .bind(json(&model.manifest))
    .bind(json(&model.settings))
    .bind(json(&model.control_tokens))
    .bind(model.created)
    .bind(model.header_version)
    .execute(connection)
    .await
    .map(drop)
}

async fn insert_files(connection: &mut SqliteConnection, model: &StoredModel) -> Result<(), sqlx::Error> {
    for (name, content) in &model.files {
        sqlx::query("INSERT INTO model_files (model_id, name, content) VALUES ($1, $2, $3)")
            .bind(&model.manifest.id)
            .bind(name)
            .bind(content)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our own types hold only strings, numbers and lists")
}

#[cfg(test)]
mod tests;
